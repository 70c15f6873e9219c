package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claim has the fields of a PersistentVolumeClaim that a decision needs.
type claim struct {
	shared bool
	volume string
}

// catalog is the cluster as maps, which are read-only after loading.
type catalog struct {
	claims  map[types.NamespacedName]claim
	handles map[string]string // from a PV to its Longhorn volume
	servers map[string]string // from a Longhorn volume to the node of its share-manager
	nodes   map[string]*corev1.Node
}

type shareManager struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		OwnerID string `json:"ownerID"`
		State   string `json:"state"`
	} `json:"status"`
}

func readCatalog(file string) (*catalog, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	known := &catalog{
		claims:  map[types.NamespacedName]claim{},
		handles: map[string]string{},
		servers: map[string]string{},
		nodes:   map[string]*corev1.Node{},
	}
	for _, item := range list.Items {
		if err := known.add(item); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return known, nil
}

func (c *catalog) add(item json.RawMessage) error {
	var of struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(item, &of); err != nil {
		return err
	}
	switch of.Kind {
	case "PersistentVolumeClaim":
		return read(item, func(found *corev1.PersistentVolumeClaim) {
			shared := slices.Contains(found.Spec.AccessModes, corev1.ReadWriteMany)
			key := types.NamespacedName{Namespace: found.Namespace, Name: found.Name}
			c.claims[key] = claim{shared: shared, volume: found.Spec.VolumeName}
		})
	case "PersistentVolume":
		return read(item, func(found *corev1.PersistentVolume) {
			if found.Spec.CSI != nil && found.Spec.CSI.Driver == "driver.longhorn.io" {
				c.handles[found.Name] = found.Spec.CSI.VolumeHandle
			}
		})
	case "ShareManager":
		return read(item, func(found *shareManager) {
			if _, known := c.servers[found.Metadata.Name]; !known && found.Status.State == "running" {
				c.servers[found.Metadata.Name] = found.Status.OwnerID
			}
		})
	case "Pod":
		return read(item, func(found *corev1.Pod) {
			if volume := found.Labels["longhorn.io/share-manager"]; volume != "" && found.Spec.NodeName != "" {
				c.servers[volume] = found.Spec.NodeName // the pod's node is more reliable than the ShareManager's owner
			}
		})
	case "Node":
		return read(item, func(found *corev1.Node) { c.nodes[found.Name] = found })
	}
	return nil
}

func read[T any](item json.RawMessage, keep func(*T)) error {
	var found T
	if err := json.Unmarshal(item, &found); err != nil {
		return err
	}
	keep(&found)
	return nil
}
