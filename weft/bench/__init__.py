"""Measuring weft: its cases, the machine's roofs, and peers in processes of their own, taking turns."""
