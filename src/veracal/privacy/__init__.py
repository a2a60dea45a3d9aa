"""What a release costs, who pays, and how the noise is added."""
