"""What the router learned. Figures and the page need libraries that training does not."""
