"""The institution's side: it declares what it answers, answers that, and keeps the books."""
