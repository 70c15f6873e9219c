"""The command line: one module per subcommand.

`options` and `requests` hold the code that several subcommands share. `narration` holds the sentences of `explain`.
Modules here may import `serving`, `cluster` and `placement`.
"""
