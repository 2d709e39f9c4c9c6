"""How payloads are written: headers, entropy coding, and the choice of codecs by measurement."""
