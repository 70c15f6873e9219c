package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// coScheduler pins a VM's pod to the node of its share-manager.
type coScheduler struct {
	decoder admission.Decoder
	catalog *catalog
}

// decision is the target node of a pod and the reason. Without a node the pod stays unchanged.
type decision struct {
	reason, node, message string
	required              bool
}

// Handle responds to one review.
func (s *coScheduler) Handle(ctx context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := s.decoder.Decode(req, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	made := s.decide(req, pod)
	log.FromContext(ctx).Info("decided", "vm", pod.Annotations["kubevirt.io/domain"], "reason", made.reason, "node", made.node)
	if made.node == "" {
		return admission.Allowed(made.reason)
	}
	carryOut(made, pod)
	marshaled, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, marshaled)
}

// decide is simpler than this project's decision: it uses the first claim with a node, and checks only the node's health.
func (s *coScheduler) decide(req admission.Request, pod *corev1.Pod) decision {
	switch {
	case req.Operation != admissionv1.Create || pod.Labels["kubevirt.io"] != "virt-launcher":
		return decision{reason: "NotVirtLauncher"}
	case pod.Annotations["kubevirt-scheduler/co-schedule"] != "true":
		return decision{reason: "NotOptedIn"}
	case pod.Labels["kubevirt.io/migrationJobUID"] != "":
		return decision{reason: "MigrationTarget"}
	case pod.Spec.NodeName != "":
		return decision{reason: "AlreadyBound"}
	}
	node, claim := s.serving(req.Namespace, pod)
	if node == "" {
		return decision{reason: "ColdStart"}
	}
	switch found := s.catalog.nodes[node]; {
	case found == nil:
		return decision{reason: "NodeNotFound"}
	case !ready(found):
		return decision{reason: "NodeNotReady", node: node, message: fmt.Sprintf("%s serves claim %s", node, claim)}
	case found.Spec.Unschedulable:
		return decision{reason: "NodeCordoned", node: node, message: fmt.Sprintf("%s serves claim %s", node, claim)}
	}
	message := fmt.Sprintf("pinned to %s, which serves claim %s", node, claim)
	return decision{reason: "CoScheduled", node: node, message: message, required: true}
}

func (s *coScheduler) serving(namespace string, pod *corev1.Pod) (node, claim string) {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		name := volume.PersistentVolumeClaim.ClaimName
		found, known := s.catalog.claims[types.NamespacedName{Namespace: namespace, Name: name}]
		if !known || !found.shared || found.volume == "" {
			continue
		}
		if node := s.catalog.servers[s.catalog.handles[found.volume]]; node != "" {
			return node, name
		}
	}
	return "", ""
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return true
}

// carryOut writes the decision into the pod. Terms are ORed, so the pin is added to each of them.
func carryOut(made decision, pod *corev1.Pod) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["kubevirt-scheduler/co-scheduled-node"] = made.node
	pod.Annotations["kubevirt-scheduler/decision"] = made.reason + ": " + made.message
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	named := corev1.NodeSelectorRequirement{
		Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{made.node},
	}
	if made.required {
		pin(affinity, named)
	}
	affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
		affinity.PreferredDuringSchedulingIgnoredDuringExecution,
		corev1.PreferredSchedulingTerm{
			Weight:     100,
			Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{named}},
		},
	)
}

func pin(affinity *corev1.NodeAffinity, named corev1.NodeSelectorRequirement) {
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{named}}},
		}
		return
	}
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		if len(terms[i].MatchExpressions)+len(terms[i].MatchFields) > 0 { // an empty term matches nothing
			terms[i].MatchFields = append(terms[i].MatchFields, named)
		}
	}
}
