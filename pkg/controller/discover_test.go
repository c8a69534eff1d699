package controller

import (
	"context"
	"log/slog"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestAResourceIsWaitedForUntilTheAPIServerHasIt(t *testing.T) {
	const wanted = "volumeattributesclasses"
	group := storagev1.SchemeGroupVersion.String()
	for name, test := range map[string]struct {
		served []*metav1.APIResourceList
		has    bool
	}{
		"it is there":          {[]*metav1.APIResourceList{{GroupVersion: group, APIResources: []metav1.APIResource{{Name: "storageclasses"}, {Name: wanted}}}}, true},
		"its group has others": {[]*metav1.APIResourceList{{GroupVersion: group, APIResources: []metav1.APIResource{{Name: "storageclasses"}}}}, false},
		"another group has it": {[]*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: wanted}}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.Resources = test.served
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if got := awaitResource(ctx, client.Discovery(), storagev1.SchemeGroupVersion, wanted, slog.New(slog.DiscardHandler)); got != test.has {
				t.Errorf("got %v, want %v", got, test.has)
			}
		})
	}
}
