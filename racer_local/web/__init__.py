"""What the local web apps share: who may talk to them, the app they live in, how it is run.

``origins``, ``guard`` and ``headers`` need the standard library only; ``app`` needs FastAPI and
``runner`` uvicorn. Nothing here knows a model, Gradio or an API.
"""
