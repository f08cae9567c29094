"""The command `fedcore`, a module for each sub-command, imported when it is called."""
