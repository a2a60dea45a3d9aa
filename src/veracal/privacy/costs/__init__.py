"""What events cost, alone and together."""
