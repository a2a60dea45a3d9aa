"""Private fine-tuning with Hugging Face's trainer; its public names are those of neural."""

from veracal._checks import extra

# Report a missing package clearly before anything else fails.
for _package in ("transformers", "accelerate"):
    extra(_package, "text")
