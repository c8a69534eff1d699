package plugin

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

func TestArgumentsAreThoseOfVolumeBinding(t *testing.T) {
	for _, args := range []string{
		"{}",
		`{"bindTimeoutSeconds": 30}`,
		`{"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}`,
		`{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "VolumeBindingArgs", "bindTimeoutSeconds": 5}`,
		`{"kind": "NodeAffinityArgs"}`,
		`{"bindTimeout": 30}`,
		`{"bindTimeoutSeconds": "long"}`,
	} {
		want, wantErr := ofUpstream(args)
		got, err := arguments(&runtime.Unknown{Raw: []byte(args)})
		if (err != nil) != (wantErr != nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("arguments %s are %s, %v, want %s, %v", args, text(got), err, text(want), wantErr)
		}
	}
}

func ofUpstream(args string) (*config.VolumeBindingArgs, error) {
	read, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(`{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"profiles": [{"pluginConfig": [{"name": "VolumeBinding", "args": `+args+`}]}]}`), nil, nil)
	if err != nil {
		return nil, err
	}
	return volumeBindingArgs(read.(*config.KubeSchedulerConfiguration)), nil
}

func volumeBindingArgs(c *config.KubeSchedulerConfiguration) *config.VolumeBindingArgs {
	for _, plugin := range c.Profiles[0].PluginConfig {
		if args, ok := plugin.Args.(*config.VolumeBindingArgs); ok {
			return args
		}
	}
	return nil
}

func text(args *config.VolumeBindingArgs) string {
	if args == nil {
		return "none"
	}
	return fmt.Sprintf("bindTimeoutSeconds %d and shape %v", args.BindTimeoutSeconds, args.Shape)
}

func TestWithoutArgumentsThePluginHasTheDefaults(t *testing.T) {
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	got, err := arguments(nil)
	if want := volumeBindingArgs(defaults); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("without arguments there are %s, %v, want %s", text(got), err, text(want))
	}
}

func TestATimeoutInWhichNothingCanBeMadeIsRefused(t *testing.T) {
	_, err := arguments(&runtime.Unknown{Raw: []byte(`{"bindTimeoutSeconds": 0}`)})
	if err == nil || !strings.Contains(err.Error(), "bindTimeoutSeconds is 0") {
		t.Errorf("with bindTimeoutSeconds 0 the error is %v", err)
	}
}
