"""What checking costs, as ratios; run from a checkout, never installed, never a test."""
