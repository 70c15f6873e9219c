"""The labels by which Longhorn marks its share-manager pods."""

COMPONENT_LABEL = "longhorn.io/component"
SHARE_MANAGER = "share-manager"  # the component
VOLUME_LABEL = "longhorn.io/share-manager"  # the name of the volume that the pod serves
