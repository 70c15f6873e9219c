"""The tool that an operator runs: one module per subcommand, or a folder whose `command` module is the subcommand.

`options`, `admission_requests`, `subjects` and `fleet_source` hold the code that several subcommands share.
"""
