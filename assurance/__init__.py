"""Gates: checks that count only because they first fail on code that is broken on purpose."""
