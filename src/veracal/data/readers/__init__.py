"""Files of every form, read without surprises."""
