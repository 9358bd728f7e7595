"""Put the checkout on the environment's path, and the `weft` command beside its Python."""

import sys
import sysconfig
from pathlib import Path

root = Path(__file__).resolve().parent.parent
Path(sysconfig.get_path("purelib"), "weft-checkout.pth").write_text(f"{root}\n")
command = Path(sys.executable).with_name("weft")
command.write_text(f"#!{sys.executable}\nfrom weft.cli import main\n\nmain()\n")
command.chmod(0o755)
