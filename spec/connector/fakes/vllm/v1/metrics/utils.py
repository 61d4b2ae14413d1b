def create_metric_per_engine(metric, per_engine_labelvalues):
    return {engine: metric.labels(*values) for engine, values in per_engine_labelvalues.items()}
