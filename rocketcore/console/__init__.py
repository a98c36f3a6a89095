"""The web console: pages over ``AsyncAdmin``, so that they show Apache's clusters as they show ours.

It needs the extra ``console`` (starlette, jinja2, uvicorn); nothing here is imported before a console is started.
"""
