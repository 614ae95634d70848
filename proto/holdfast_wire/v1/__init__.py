"""Generated from the `.proto` files beside it by `make proto`; nothing else belongs here."""
