"""Which private classifier is best on tables, at which epsilon?"""
