"""The labels by which Longhorn marks its share-manager pods, the account that creates these pods, and a setting."""

COMPONENT_LABEL = "longhorn.io/component"
SHARE_MANAGER = "share-manager"  # the component
LONGHORN_ACCOUNT = "longhorn-service-account"  # of Longhorn's manager
VOLUME_LABEL = "longhorn.io/share-manager"  # the name of the volume that the pod serves
VERSION_SETTING = "current-longhorn-version"  # the name of the setting that has the version
