"""The live page: a small web server over one home's log, and the page's own files in `static/`.

It reads the log as any reader does and never writes it. When you steer a run on the page, a command file
goes into the inbox, as from the command line. By default it answers only this machine, and only requests
with the token, and it loads nothing from elsewhere. Open `server.py` first, then `guard.py` (who may
ask), `pages.py` (what can be asked) and `static/main.js`.
"""
