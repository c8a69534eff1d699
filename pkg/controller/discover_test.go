package controller

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				client.Resources = test.served
				ctx, cancel := context.WithTimeout(t.Context(), 3*resourceLook)
				defer cancel()
				if got := awaitResource(ctx, client.Discovery(), storagev1.SchemeGroupVersion, wanted, slog.New(slog.DiscardHandler)); got != test.has {
					t.Errorf("got %v, want %v", got, test.has)
				}
			})
		})
	}
}

// A failing API server proves nothing about its resources.
func TestAResourceIsFoundSoonAfterTheAPIServerFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.Resources = []*metav1.APIResourceList{{GroupVersion: storagev1.SchemeGroupVersion.String(), APIResources: []metav1.APIResource{{Name: "storageclasses"}}}}
		failures := 3
		client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("no answer")
		})
		ctx, cancel := context.WithTimeout(t.Context(), resourceLook/2)
		defer cancel()
		if !awaitResource(ctx, client.Discovery(), storagev1.SchemeGroupVersion, "storageclasses", slog.New(slog.DiscardHandler)) {
			t.Errorf("it was not found within %v", resourceLook/2)
		}
	})
}
