#!/usr/bin/env python3
"""Writes the seeds of `record` and `ciphertext` from the vectors."""
import json, pathlib

fuzz = pathlib.Path(__file__).resolve().parent
for path in sorted((fuzz.parent / "vectors/v1").glob("*.json")):
    vector = json.loads(path.read_text())
    annotation, ciphertext = bytes.fromhex(vector["annotation"]), bytes.fromhex(vector["ciphertext"])
    key_id = vector["key_id"].encode()
    request = bytes([len(key_id)]) + key_id + len(annotation).to_bytes(2, "big") + annotation + ciphertext
    for target, seed in ("record", annotation), ("ciphertext", request):
        folder = fuzz / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.stem).write_bytes(seed)
