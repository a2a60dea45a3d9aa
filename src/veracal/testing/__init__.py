"""Contracts that parts of your own must keep, as functions that raise when they do not."""

from veracal.testing.clips import check_clip as check_clip
from veracal.testing.mechanisms import check_mechanism as check_mechanism
from veracal.testing.queries import adversarial_scores as adversarial_scores
from veracal.testing.queries import check_query as check_query
from veracal.testing.queries import check_statistic as check_statistic
from veracal.testing.sources import check_source as check_source
from veracal.testing.updates import check_update as check_update
