"""The pages of the console, a subject a module: each asks the cluster once and says what it shows."""
