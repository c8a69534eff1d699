package controller

import "testing"

func TestRequestsAreCountedByResource(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/persistentvolumes":                                                             "persistentvolumes",
		"/api/v1/persistentvolumes/{name}":                                                      "persistentvolumes",
		"/api/v1/persistentvolumes/{name}/status":                                               "persistentvolumes/status",
		"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}/status":                   "persistentvolumeclaims/status",
		"/api/v1/namespaces/{namespace}/events":                                                 "events",
		"/api/v1/namespaces/{name}":                                                             "namespaces",
		"/apis/storage.k8s.io/v1/namespaces/{namespace}/csistoragecapacities/{name}":            "csistoragecapacities",
		"/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/volumesnapshots/{name}/status": "volumesnapshots/status",
		"/apis/authentication.k8s.io/v1/tokenreviews":                                           "tokenreviews",
		"/{prefix}": "",
	} {
		if got := resourceOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
