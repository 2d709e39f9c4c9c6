"""The trainers of other libraries: one ``StashCallback`` each, on the library's own classes.

Every file is named after the library whose trainer takes it, and imports that. All classes have the same name and take
the same arguments: ``Trainer(..., callbacks=[StashCallback("disk_spill", limits=..., min_bytes=...)])``.
"""
