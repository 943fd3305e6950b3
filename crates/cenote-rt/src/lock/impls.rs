//! What all locks, and all guards, have alike.

/// Makes locks with default values, and shows locks without taking them.
macro_rules! locks {
    ($($lock:ident)*) => {$(
        impl<T: Default> $lock<T> {
            /// Returns a lock around the default value, with its place in the order.
            #[must_use]
            pub fn with_default(rank: Rank) -> Self {
                Self::new(rank, T::default())
            }
        }

        impl<T> fmt::Debug for $lock<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = stringify!($lock);
                f.debug_struct(name).field("place", &self.place).finish_non_exhaustive()
            }
        }
    )*};
}

/// Makes guards give access to the value, and look like it.
macro_rules! guards {
    ($($guard:ident $is_exclusive:tt)*) => {$(
        impl<T> Deref for $guard<'_, T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                &self.inner
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                T::fmt(self, f)
            }
        }

        guards!(@ $guard $is_exclusive);
    )*};
    (@ $guard:ident shared) => {};
    (@ $guard:ident exclusive) => {
        impl<T> DerefMut for $guard<'_, T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                &mut self.inner
            }
        }
    };
}
