package objects

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/names"
)

func TestTheNodeOfAVolume(t *testing.T) {
	in := func(key string, values ...string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: values}}}
	}
	pinned := func(terms ...v1.NodeSelectorTerm) *v1.VolumeNodeAffinity {
		return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
	}
	for name, test := range map[string]struct {
		affinity *v1.VolumeNodeAffinity
		record   string
		want     string
	}{
		"pinned to one node":                         {affinity: pinned(in(names.TopologyNode, "n1")), want: "n1"},
		"pinned to one node of several labels":       {affinity: pinned(in("zone", "z")), want: ""},
		"pinned to one of two nodes":                 {affinity: pinned(in(names.TopologyNode, "n1", "n2")), want: ""},
		"pinned by two terms":                        {affinity: pinned(in(names.TopologyNode, "n1"), in(names.TopologyNode, "n2")), want: ""},
		"made for any node, with a record":           {record: "n1", want: "n1"},
		"made for any node, without a record":        {want: ""},
		"pinned where the record says":               {affinity: pinned(in(names.TopologyNode, "n1")), record: "n1", want: "n1"},
		"pinned elsewhere than the record says":      {affinity: pinned(in(names.TopologyNode, "n2")), record: "n1", want: "n2"},
		"pinned to no node, with a record":           {affinity: pinned(in("zone", "z")), record: "n1", want: ""},
		"an affinity that says nothing and a record": {affinity: &v1.VolumeNodeAffinity{}, record: "n1", want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{NodeAffinity: test.affinity, PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeAttributes: map[string]string{names.ContextNode: test.record}}}}}
			if got, ok := NodeOf(pv); got != test.want || ok != (test.want != "") {
				t.Errorf("node %q, %t; want %q", got, ok, test.want)
			}
		})
	}
	if node, ok := NodeOf(&v1.PersistentVolume{}); ok {
		t.Errorf("a volume of another kind is on node %q", node)
	}
}
