"""What routes of all APIs do: generate, chat, embed; and how that is tracked and measured."""
