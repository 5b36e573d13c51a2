"""The live page: a small web server over one home's log, and the page's own files in `static/`.

It reads the log as any reader does and never writes it: what a person asks for on the page is a command file
in the inbox, as from the command line. It answers this machine only, to who has the token, and loads nothing
from elsewhere. Open `server.py` first, then `guard.py` (who may ask), `pages.py` (what can be asked) and
`static/main.js`.
"""
