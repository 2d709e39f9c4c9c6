"""The trainers of other libraries: one ``StashCallback`` each, on the library's own classes.

Every file is named after the library whose trainer takes it, and importing the file imports the library. All classes
have the same name and take the same arguments: ``StashCallback("disk_spill", limits=..., min_bytes=...)``.
"""
