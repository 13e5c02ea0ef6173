"""Command `svc completion`: write the completion script of a shell."""

from common.command_line import completion_command

completion = completion_command("svc")
