"""Evidence for the claims of the project, measured in minutes on two cores: `make evidence`."""
