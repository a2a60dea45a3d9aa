"""Signed messages between a coordinator and a source."""
