"""Recalibration: public facts about sources, the plan, the run and its result."""
