package plugin

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// arguments decodes the plugin's arguments as the scheduler decodes VolumeBinding's: strictly, and
// with the same defaults. VolumeBinding checks their values later.
func arguments(given runtime.Object) (*config.VolumeBindingArgs, error) {
	raw := []byte("{}")
	if given != nil {
		unknown, ok := given.(*runtime.Unknown)
		if !ok {
			return nil, fmt.Errorf("arguments of %s are a %T", Name, given)
		}
		raw = unknown.Raw
	}
	kind := configv1.SchemeGroupVersion.WithKind("VolumeBindingArgs")
	decoded, _, err := scheme.Codecs.UniversalDecoder().Decode(raw, &kind, nil)
	if err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", Name, err)
	}
	args, ok := decoded.(*config.VolumeBindingArgs)
	if !ok {
		return nil, fmt.Errorf("arguments of %s are %T, not VolumeBindingArgs", Name, decoded)
	}
	if args.BindTimeoutSeconds == 0 {
		return nil, errors.New("arguments of " + Name + ": bindTimeoutSeconds is 0, which leaves no time to have volumes made")
	}
	return args, nil
}
