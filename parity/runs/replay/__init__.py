"""`parity replay`: a golden's modules run again here, on their recorded inputs."""
