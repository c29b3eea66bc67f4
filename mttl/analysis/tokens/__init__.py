"""What tokens chose: counts, statistics, and their part of the page."""
