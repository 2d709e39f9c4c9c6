"""needs"""

NEEDS: dict = {}
