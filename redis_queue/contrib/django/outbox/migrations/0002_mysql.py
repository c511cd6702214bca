"""Let the outbox work as well with MySQL and MariaDB."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from redis_queue.contrib.django.outbox.models import TaskId


class Migration(migrations.Migration):
    """Distinguish ids that differ in case, and let relays lock only the rows that they take."""

    dependencies: ClassVar = [("redis_queue_outbox", "0001_initial")]

    operations: ClassVar = [
        migrations.AlterField(model_name="call", name="task_id", field=TaskId(max_length=255, unique=True)),
        migrations.AddIndex(
            model_name="call",
            index=models.Index(fields=["set_aside", "failures", "id"], name="redis_queue_outbox_relays"),
        ),
    ]
