"""python -m fedcore: the command `fedcore`."""

from fedcore.cli.main import main

if __name__ == "__main__":
    main()
