"""Which private classifier wins on tables, at which epsilon?"""
