"""The live view `stoker top`: only this package imports Textual."""
