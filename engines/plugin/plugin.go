// Package plugin is how an adapter reaches the broker: one call in its main.
package plugin
