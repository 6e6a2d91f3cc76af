"""The Celery app for Celery's own tools, configured by the environment: `celery -A broker.app flower`."""

from broker import panel
from broker.celery_app import create_app
from broker.settings import load_broker_settings

app = create_app(load_broker_settings())
panel.register()
