"""Analysis of learned routing; figures need libraries that training does not."""
