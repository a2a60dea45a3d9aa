"""Contracts that parts of your own must keep, as functions that raise when they do not."""

from veracal.testing.clips import check_clip as check_clip
from veracal.testing.updates import check_update as check_update
